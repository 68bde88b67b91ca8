//! Credentials of a file that the operator names: read anew whenever they are asked for, so that a file that comes late
//! or changes is noticed.

use std::path::PathBuf;

use aws_config::profile::ProfileFileCredentialsProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, future};
use aws_runtime::env_config::file::{EnvConfigFileKind, EnvConfigFiles};

/// The credentials of one profile in a file.
#[derive(Clone, Debug)]
pub(crate) struct FileCredentials {
    pub(crate) file: PathBuf,
    /// The profile; AWS's default one when empty.
    pub(crate) profile: Option<String>,
}

impl FileCredentials {
    async fn read(&self) -> Result<Credentials, CredentialsError> {
        // The SDK's reader says only once what is wrong, and not in words for people.
        if let Err(why) = std::fs::metadata(&self.file) {
            return Err(CredentialsError::invalid_configuration(format!(
                "cannot read the credentials file {}: {why}",
                self.file.display()
            )));
        }
        let files = EnvConfigFiles::builder().with_file(EnvConfigFileKind::Credentials, &self.file).build();
        let mut reader = ProfileFileCredentialsProvider::builder().profile_files(files);
        if let Some(profile) = &self.profile {
            reader = reader.profile_name(profile);
        }
        reader.build().provide_credentials().await
    }
}

impl ProvideCredentials for FileCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_comes_late_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let credentials = FileCredentials { file: dir.path().join("credentials"), profile: None };
        let why = credentials.provide_credentials().await.expect_err("there is no file");
        assert!(std::error::Error::source(&why).expect("a cause").to_string().contains("credentials"), "{why:?}");
        for key in ["first", "second"] {
            let text = format!("[default]\naws_access_key_id = {key}\naws_secret_access_key = s\n");
            std::fs::write(&credentials.file, text).expect("written");
            assert_eq!(credentials.provide_credentials().await.expect("there").access_key_id(), key);
        }
    }
}
