//! Consul Connect: kept as JSON, and refused when the job is submitted.

use super::{COUNT, INT, PORT, opaque::*, *};
use crate::{
    resources::Resources,
    task_blocks::{LogConfig, VolumeMount},
};

/// Consul's service mesh.
pub(crate) const CONNECT: &Block = &Block {
    name: "Connect",
    doc: "Consul's service mesh.",
    policy: false,
    fields: &[
        a("native", "Native", Kind::Bool),
        one("gateway", "Gateway", GATEWAY),
        one("sidecar_service", "SidecarService", SIDECAR_SERVICE),
        one("sidecar_task", "SidecarTask", SIDECAR_TASK),
    ],
    extra: &[],
};

/// The proxy beside a service.
pub(super) const SIDECAR_SERVICE: &Block = &Block {
    name: "SidecarService",
    doc: "The proxy beside a service.",
    policy: false,
    fields: &[
        a("tags", "Tags", Kind::Texts),
        a("port", "Port", Kind::Text),
        a("disable_default_tcp_check", "DisableDefaultTCPCheck", Kind::Bool),
        one("proxy", "Proxy", PROXY),
        texts("meta", "Meta"),
    ],
    extra: &[],
};

/// The task that runs the proxy.
pub(super) const SIDECAR_TASK: &Block = &Block {
    name: "SidecarTask",
    doc: "The task that runs the proxy.",
    policy: false,
    fields: &[
        a("name", "Name", Kind::Text),
        a("driver", "Driver", Kind::Text),
        a("user", "User", Kind::Text),
        null(a("kill_timeout", "KillTimeout", Kind::Duration)),
        null(a("shutdown_delay", "ShutdownDelay", Kind::Duration)),
        a("kill_signal", "KillSignal", Kind::Text),
        free("config", "Config"),
        texts("env", "Env"),
        one("resources", "Resources", Resources::BLOCK),
        texts("meta", "Meta"),
        one("logs", "LogConfig", LogConfig::BLOCK),
        many("volume_mount", "VolumeMounts", VolumeMount::BLOCK),
    ],
    extra: &[],
};

/// Settings of the proxy.
pub(super) const PROXY: &Block = &Block {
    name: "Proxy",
    doc: "Settings of the proxy.",
    policy: false,
    fields: &[
        a("local_service_address", "LocalServiceAddress", Kind::Text),
        a("local_service_port", "LocalServicePort", INT),
        one("expose", "Expose", EXPOSE),
        many("upstreams", "Upstreams", UPSTREAM),
        one("transparent_proxy", "TransparentProxy", TRANSPARENT_PROXY),
        free("config", "Config"),
        api("ExposeConfig", Shape::One(EXPOSE), Unset::Null),
    ],
    extra: &[],
};

/// Gateways between meshes.
pub(super) const MESH_GATEWAY: &Block = &Block {
    name: "MeshGateway",
    doc: "Gateways between meshes.",
    policy: false,
    fields: &[a("mode", "Mode", Kind::Text)],
    extra: &[],
};

/// A service that the task calls.
pub(super) const UPSTREAM: &Block = &Block {
    name: "Upstream",
    doc: "A service that the task calls.",
    policy: false,
    fields: &[
        a("destination_name", "DestinationName", Kind::Text),
        a("destination_namespace", "DestinationNamespace", Kind::Text),
        a("destination_peer", "DestinationPeer", Kind::Text),
        a("destination_partition", "DestinationPartition", Kind::Text),
        a("destination_type", "DestinationType", Kind::Text),
        a("local_bind_port", "LocalBindPort", INT),
        a("datacenter", "Datacenter", Kind::Text),
        a("local_bind_address", "LocalBindAddress", Kind::Text),
        a("local_bind_socket_path", "LocalBindSocketPath", Kind::Text),
        a("local_bind_socket_mode", "LocalBindSocketMode", Kind::Text),
        one("mesh_gateway", "MeshGateway", MESH_GATEWAY),
        free("config", "Config"),
    ],
    extra: &[],
};

/// Redirection of all traffic through the proxy.
pub(super) const TRANSPARENT_PROXY: &Block = &Block {
    name: "TransparentProxy",
    doc: "Redirection of all traffic through the proxy.",
    policy: false,
    fields: &[
        a("uid", "UID", Kind::Text),
        a("outbound_port", "OutboundPort", PORT),
        a("exclude_inbound_ports", "ExcludeInboundPorts", Kind::Texts),
        a("exclude_outbound_ports", "ExcludeOutboundPorts", Kind::Ports),
        a("exclude_outbound_cidrs", "ExcludeOutboundCIDRs", Kind::Texts),
        a("exclude_uids", "ExcludeUIDs", Kind::Texts),
        a("no_dns", "NoDNS", Kind::Bool),
    ],
    extra: &[],
};

/// Paths that are open outside the mesh.
pub(super) const EXPOSE: &Block = &Block {
    name: "Expose",
    doc: "Paths that are open outside the mesh.",
    policy: false,
    fields: &[many("path", "Paths", EXPOSE_PATH), Field { written: Written::Never, ..many("", "Path", EXPOSE_PATH) }],
    extra: &[],
};

/// A path that is open outside the mesh.
pub(super) const EXPOSE_PATH: &Block = &Block {
    name: "ExposePath",
    doc: "A path that is open outside the mesh.",
    policy: false,
    fields: &[
        a("path", "Path", Kind::Text),
        a("protocol", "Protocol", Kind::Text),
        a("local_path_port", "LocalPathPort", INT),
        a("listener_port", "ListenerPort", Kind::Text),
    ],
    extra: &[],
};

/// A gateway of the mesh.
pub(super) const GATEWAY: &Block = &Block {
    name: "Gateway",
    doc: "A gateway of the mesh.",
    policy: false,
    fields: &[
        one("proxy", "Proxy", GATEWAY_PROXY),
        one("ingress", "Ingress", INGRESS),
        one("terminating", "Terminating", TERMINATING),
        one("mesh", "Mesh", MESH),
    ],
    extra: &[],
};

/// Settings of a gateway's proxy.
pub(super) const GATEWAY_PROXY: &Block = &Block {
    name: "GatewayProxy",
    doc: "Settings of a gateway's proxy.",
    policy: false,
    fields: &[
        null(a("connect_timeout", "ConnectTimeout", Kind::Duration)),
        a("envoy_gateway_bind_tagged_addresses", "EnvoyGatewayBindTaggedAddresses", Kind::Bool),
        a("envoy_gateway_no_default_bind", "EnvoyGatewayNoDefaultBind", Kind::Bool),
        a("envoy_dns_discovery_type", "EnvoyDNSDiscoveryType", Kind::Text),
        by_label("envoy_gateway_bind_addresses", "EnvoyGatewayBindAddresses", GATEWAY_BIND),
        free("config", "Config"),
    ],
    extra: &[],
};

/// An address that a gateway listens on.
pub(super) const GATEWAY_BIND: &Block = &Block {
    name: "GatewayBind",
    doc: "An address that a gateway listens on.",
    policy: false,
    fields: &[label("Name"), a("address", "Address", Kind::Text), a("port", "Port", INT)],
    extra: &[],
};

/// TLS of a gateway.
pub(super) const GATEWAY_TLS: &Block = &Block {
    name: "GatewayTls",
    doc: "TLS of a gateway.",
    policy: false,
    fields: &[
        a("enabled", "Enabled", Kind::Bool),
        a("tls_min_version", "TLSMinVersion", Kind::Text),
        a("tls_max_version", "TLSMaxVersion", Kind::Text),
        a("cipher_suites", "CipherSuites", Kind::Texts),
        one("sds", "SDS", GATEWAY_SDS),
    ],
    extra: &[],
};

/// Where a gateway gets its certificate.
pub(super) const GATEWAY_SDS: &Block = &Block {
    name: "GatewaySds",
    doc: "Where a gateway gets its certificate.",
    policy: false,
    fields: &[a("cluster_name", "ClusterName", Kind::Text), a("cert_resource", "CertResource", Kind::Text)],
    extra: &[],
};

/// A gateway into the mesh.
pub(super) const INGRESS: &Block = &Block {
    name: "Ingress",
    doc: "A gateway into the mesh.",
    policy: false,
    fields: &[one("tls", "TLS", GATEWAY_TLS), many("listener", "Listeners", INGRESS_LISTENER)],
    extra: &[],
};

/// A listener of a gateway.
pub(super) const INGRESS_LISTENER: &Block = &Block {
    name: "IngressListener",
    doc: "A listener of a gateway.",
    policy: false,
    fields: &[
        a("port", "Port", INT),
        a("protocol", "Protocol", Kind::Text),
        many("service", "Services", INGRESS_SERVICE),
    ],
    extra: &[],
};

/// A service behind a listener.
pub(super) const INGRESS_SERVICE: &Block = &Block {
    name: "IngressService",
    doc: "A service behind a listener.",
    policy: false,
    fields: &[
        a("name", "Name", Kind::Text),
        a("hosts", "Hosts", Kind::Texts),
        null(a("max_connections", "MaxConnections", COUNT)),
        null(a("max_pending_requests", "MaxPendingRequests", COUNT)),
        null(a("max_concurrent_requests", "MaxConcurrentRequests", COUNT)),
        one("tls", "TLS", GATEWAY_TLS),
        one("request_headers", "RequestHeaders", GATEWAY_HEADERS),
        one("response_headers", "ResponseHeaders", GATEWAY_HEADERS),
    ],
    extra: &[],
};

/// Changes of HTTP headers.
pub(super) const GATEWAY_HEADERS: &Block = &Block {
    name: "GatewayHeaders",
    doc: "Changes of HTTP headers.",
    policy: false,
    fields: &[a("remove", "Remove", Kind::Texts), texts("add", "Add"), texts("set", "Set")],
    extra: &[],
};

/// A gateway out of the mesh.
pub(super) const TERMINATING: &Block = &Block {
    name: "Terminating",
    doc: "A gateway out of the mesh.",
    policy: false,
    fields: &[many("service", "Services", LINKED_SERVICE)],
    extra: &[],
};

/// A service outside the mesh.
pub(super) const LINKED_SERVICE: &Block = &Block {
    name: "LinkedService",
    doc: "A service outside the mesh.",
    policy: false,
    fields: &[
        a("name", "Name", Kind::Text),
        a("ca_file", "CAFile", Kind::Text),
        a("cert_file", "CertFile", Kind::Text),
        a("key_file", "KeyFile", Kind::Text),
        a("sni", "SNI", Kind::Text),
    ],
    extra: &[],
};

/// A gateway between meshes.
pub(super) const MESH: &Block =
    &Block { name: "Mesh", doc: "A gateway between meshes.", policy: false, fields: &[], extra: &[] };
