//! The capabilities of each kind of block, by name, and what the shorthands of `policy` stand for.

use std::{fmt, marker::PhantomData};

/// A capability: one of a small set of names.
pub trait Named: Copy + 'static {
    /// All of them; the place in this list is the bit in a [`CapSet`].
    const ALL: &'static [Self];
    /// The capability that takes all others away.
    const DENY: Self;
    /// Its name in policies.
    fn name(self) -> &'static str;
    /// Its place in [`Named::ALL`].
    fn place(self) -> u32;
    /// What comes with it.
    fn implied(self) -> &'static [Self] {
        &[]
    }
    /// The capability of this name.
    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|c| c.name() == name)
    }
}

macro_rules! capabilities {
    ($(#[$doc:meta])* $type:ident { $($(#[$one:meta])* $variant:ident = $name:literal $(+ $($more:ident)+)?,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $(#[doc = concat!("`", $name, "`")] $variant,)+
        }
        impl Named for $type {
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            const DENY: Self = Self::Deny;
            fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
            fn place(self) -> u32 {
                self as u32
            }
            fn implied(self) -> &'static [Self] {
                match self { $(Self::$variant => &[$($(Self::$more),+)?]),+ }
            }
        }
    };
}

capabilities! {
    /// What a `namespace` block allows.
    Capability {
        Deny = "deny",
        ListJobs = "list-jobs",
        ParseJob = "parse-job",
        ReadJob = "read-job",
        SubmitJob = "submit-job",
        DispatchJob = "dispatch-job",
        ReadLogs = "read-logs",
        ReadFs = "read-fs",
        AllocExec = "alloc-exec",
        AllocNodeExec = "alloc-node-exec",
        AllocLifecycle = "alloc-lifecycle",
        SentinelOverride = "sentinel-override",
        CsiRegisterPlugin = "csi-register-plugin",
        CsiWriteVolume = "csi-write-volume",
        CsiReadVolume = "csi-read-volume",
        CsiListVolume = "csi-list-volume",
        CsiMountVolume = "csi-mount-volume",
        ListScalingPolicies = "list-scaling-policies",
        ReadScalingPolicy = "read-scaling-policy",
        ReadJobScaling = "read-job-scaling",
        ScaleJob = "scale-job",
        SubmitRecommendation = "submit-recommendation",
        HostVolumeCreate = "host-volume-create" + HostVolumeRead,
        HostVolumeRegister = "host-volume-register" + HostVolumeCreate HostVolumeRead,
        HostVolumeRead = "host-volume-read",
        HostVolumeWrite = "host-volume-write" + HostVolumeRegister HostVolumeCreate HostVolumeDelete HostVolumeRead,
        HostVolumeDelete = "host-volume-delete",
        RegisterJob = "register-job",
        RevertJob = "revert-job",
        DeregisterJob = "deregister-job",
        PurgeJob = "purge-job",
        EvaluateJob = "evaluate-job",
        PlanJob = "plan-job",
        StableJob = "stable-job",
        TagJobVersion = "tag-job-version",
        FailDeployment = "fail-deployment",
        PauseDeployment = "pause-deployment",
        PromoteDeployment = "promote-deployment",
        UnblockDeployment = "unblock-deployment",
        CancelDeployment = "cancel-deployment",
        SetAllocHealthDeployment = "set-alloc-health-deployment",
        GcAllocation = "gc-allocation",
        PauseAllocation = "pause-allocation",
        ForcePeriodicJob = "force-periodic-job",
        DeleteServiceRegistration = "delete-service-registration",
    }
}

capabilities! {
    /// What a `path` of a `variables` block allows.
    VariableCapability {
        Deny = "deny",
        List = "list",
        Read = "read" + List,
        Write = "write",
        Destroy = "destroy",
    }
}

capabilities! {
    /// What a `node_pool` block allows.
    NodePoolCapability {
        Deny = "deny",
        Read = "read",
        Write = "write",
        Delete = "delete",
    }
}

capabilities! {
    /// What a `host_volume` block allows.
    HostVolumeCapability {
        Deny = "deny",
        MountReadonly = "mount-readonly",
        MountReadwrite = "mount-readwrite",
    }
}

capabilities! {
    /// What the `operator` block allows beside its `policy`.
    OperatorCapability {
        Deny = "deny",
        SnapshotSave = "snapshot-save",
        LicenseRead = "license-read",
        KeyringRotate = "keyring-rotate",
        KeyringRead = "keyring-read",
        KeyringDelete = "keyring-delete",
    }
}

/// A set of capabilities of one kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CapSet<C> {
    bits: u64,
    kind: PhantomData<C>,
}

impl<C> Default for CapSet<C> {
    fn default() -> Self {
        Self { bits: 0, kind: PhantomData }
    }
}

impl<C: Named> CapSet<C> {
    /// A set of these, with what each implies.
    pub fn of(capabilities: &[C]) -> Self {
        let mut set = Self::default();
        for capability in capabilities {
            set.add(*capability);
        }
        set
    }

    /// Adds a capability and what it implies.
    pub fn add(&mut self, capability: C) {
        self.bits |= 1 << capability.place();
        for more in capability.implied() {
            self.bits |= 1 << more.place();
        }
    }

    /// Is this one in it?
    pub fn has(self, capability: C) -> bool {
        self.bits & (1 << capability.place()) != 0
    }

    /// Is any of these in it?
    pub fn has_any(self, capabilities: &[C]) -> bool {
        capabilities.iter().any(|c| self.has(*c))
    }

    /// Nothing is in it.
    pub fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits, kind: PhantomData }
    }

    /// `deny` alone, when it is in it.
    #[must_use]
    pub fn settled(self) -> Self {
        if self.has(C::DENY) { Self::of(&[C::DENY]) } else { self }
    }

    /// Those in it, in the order of their list.
    pub fn iter(self) -> impl Iterator<Item = C> {
        C::ALL.iter().copied().filter(move |c| self.has(*c))
    }
}

impl<C: Named> fmt::Debug for CapSet<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Named::name)).finish()
    }
}

/// What the `policy` of a `namespace` block stands for; None = there is no such policy.
pub(crate) fn namespace_policy(name: &str) -> Option<&'static [Capability]> {
    use Capability as C;
    const READ: &[Capability] = &[
        C::ListJobs,
        C::ParseJob,
        C::ReadJob,
        C::CsiListVolume,
        C::CsiReadVolume,
        C::ReadJobScaling,
        C::ListScalingPolicies,
        C::ReadScalingPolicy,
        C::HostVolumeRead,
    ];
    const WRITE: &[Capability] = &[
        C::ListJobs,
        C::ParseJob,
        C::ReadJob,
        C::CsiListVolume,
        C::CsiReadVolume,
        C::ReadJobScaling,
        C::ListScalingPolicies,
        C::ReadScalingPolicy,
        C::HostVolumeRead,
        C::ScaleJob,
        C::SubmitJob,
        C::DispatchJob,
        C::ReadLogs,
        C::ReadFs,
        C::AllocExec,
        C::AllocLifecycle,
        C::CsiMountVolume,
        C::CsiWriteVolume,
        C::SubmitRecommendation,
        C::HostVolumeCreate,
    ];
    const SCALE: &[Capability] = &[
        C::ListScalingPolicies,
        C::ReadScalingPolicy,
        C::ReadJobScaling,
        C::ScaleJob,
        C::ReadJob,
        C::SubmitRecommendation,
    ];
    Some(match name {
        "read" => READ,
        "write" => WRITE,
        "scale" => SCALE,
        "deny" => &[C::Deny],
        _ => return None,
    })
}

/// What the `policy` of a `node_pool` block stands for.
pub(crate) fn node_pool_policy(name: &str) -> Option<&'static [NodePoolCapability]> {
    use NodePoolCapability as C;
    Some(match name {
        "read" => &[C::Read],
        "write" => &[C::Read, C::Write, C::Delete],
        "deny" => &[C::Deny],
        _ => return None,
    })
}

/// What the `policy` of a `host_volume` block stands for.
pub(crate) fn host_volume_policy(name: &str) -> Option<&'static [HostVolumeCapability]> {
    use HostVolumeCapability as C;
    Some(match name {
        "read" => &[C::MountReadonly],
        "write" => &[C::MountReadonly, C::MountReadwrite],
        "deny" => &[C::Deny],
        _ => return None,
    })
}

/// What the `policy` of the `operator` block stands for, beside the level.
pub(crate) fn operator_policy(name: &str) -> Option<&'static [OperatorCapability]> {
    use OperatorCapability as C;
    Some(match name {
        "read" => &[C::LicenseRead, C::KeyringRead],
        "write" => &[C::SnapshotSave, C::LicenseRead, C::KeyringRotate, C::KeyringRead, C::KeyringDelete],
        "deny" => &[C::Deny],
        _ => return None,
    })
}
