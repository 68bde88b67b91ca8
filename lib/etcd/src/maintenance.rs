//! etcd's own members: their health, alarms and room.

use tonic::transport::Channel;

use crate::{
    Client, Error,
    client::{Inner, Kind, Options},
    proto::{
        AlarmKind, AlarmMember, AlarmRequest, DefragmentRequest, Member, MemberListRequest, StatusRequest,
        StatusResponse, alarm_request::Action, cluster_client::ClusterClient, maintenance_client::MaintenanceClient,
    },
};

/// A member, and what it says of itself.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// As the members know it.
    pub member: Member,
    /// Its own answer; or why there is none.
    pub status: Result<StatusResponse, Error>,
}

impl Client {
    /// The status of the member that answers.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn status(&self) -> Result<StatusResponse, Error> {
        self.call(Kind::Reads, StatusRequest {}, |channel, request| async move {
            maintenance(channel).status(request).await
        })
        .await
    }

    /// The members.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        let answer = self.call(Kind::Reads, MemberListRequest {}, |channel, request| async move {
            ClusterClient::new(channel).member_list(request).await
        });
        Ok(answer.await?.members)
    }

    /// The members, each with its status, asked at its own address.
    ///
    /// # Errors
    /// When the members are not known.
    pub async fn members_status(&self) -> Result<Vec<MemberStatus>, Error> {
        let mut all = Vec::new();
        for member in self.members().await? {
            let status = match self.at(&member) {
                Ok(client) => client.status().await,
                Err(error) => Err(error),
            };
            all.push(MemberStatus { member, status });
        }
        Ok(all)
    }

    /// A client of one member.
    ///
    /// # Errors
    /// [`Error::Options`]: its address cannot be used.
    pub fn at(&self, member: &Member) -> Result<Self, Error> {
        let inner: &Inner = &self.0;
        Self::new(&Options { endpoints: member.client_urls.clone(), tls: inner.tls.clone(), user: inner.user() })
    }

    /// The alarms.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn alarms(&self) -> Result<Vec<AlarmMember>, Error> {
        self.alarm(Action::Get, AlarmKind::None, 0).await
    }

    /// Ends an alarm of a member. etcd raises it again while its cause lasts.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn disarm(&self, alarm: &AlarmMember) -> Result<(), Error> {
        self.alarm(Action::Deactivate, alarm.alarm(), alarm.member_id).await.map(drop)
    }

    async fn alarm(&self, action: Action, alarm: AlarmKind, member_id: u64) -> Result<Vec<AlarmMember>, Error> {
        let request = AlarmRequest { action: action as i32, member_id, alarm: alarm as i32 };
        let answer = self
            .call(Kind::Reads, request, |channel, request| async move { maintenance(channel).alarm(request).await });
        Ok(answer.await?.alarms)
    }

    /// Gives the room that compaction has freed back to the disk of the member that this client is of (see
    /// [`Self::at`]). The member answers nobody until it is done.
    ///
    /// # Errors
    /// See [`Error`]; without an answer it goes on.
    pub async fn defragment(&self) -> Result<(), Error> {
        let answer = self.call(Kind::Writes, DefragmentRequest {}, |channel, request| async move {
            maintenance(channel).defragment(request).await
        });
        answer.await.map(drop)
    }
}

fn maintenance(channel: Channel) -> MaintenanceClient<Channel> {
    MaintenanceClient::new(channel)
}
