//! Consul Connect: kept, and refused when the job is submitted.

use super::task::{LOGS, RESOURCES, VOLUME_MOUNT};
use super::*;

pub(super) static CONNECT: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("native", "Native", Kind::Bool)],
    blocks: &[
        one("gateway", "Gateway", &GATEWAY),
        one("sidecar_service", "SidecarService", &SIDECAR_SERVICE),
        one("sidecar_task", "SidecarTask", &SIDECAR_TASK),
    ],
    json_only: &[],
    finish: finish::none,
};

pub(super) static SIDECAR_SERVICE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("tags", "Tags", Kind::Texts),
        a("port", "Port", Kind::Text),
        a("disable_default_tcp_check", "DisableDefaultTCPCheck", Kind::Bool),
    ],
    blocks: &[one("proxy", "Proxy", &PROXY), texts("meta", "Meta")],
    json_only: &[],
    finish: finish::none,
};

pub(super) static SIDECAR_TASK: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("name", "Name", Kind::Text),
        a("driver", "Driver", Kind::Text),
        a("user", "User", Kind::Text),
        a("kill_timeout", "KillTimeout", Kind::Duration),
        a("shutdown_delay", "ShutdownDelay", Kind::Duration),
        a("kill_signal", "KillSignal", Kind::Text),
    ],
    blocks: &[
        free("config", "Config"),
        texts("env", "Env"),
        one("resources", "Resources", &RESOURCES),
        texts("meta", "Meta"),
        one("logs", "LogConfig", &LOGS),
        many("volume_mount", "VolumeMounts", &VOLUME_MOUNT),
    ],
    json_only: &[],
    finish: finish::none,
};

pub(super) static PROXY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("local_service_address", "LocalServiceAddress", Kind::Text), a("local_service_port", "LocalServicePort", INT)],
    blocks: &[
        one("expose", "Expose", &EXPOSE),
        many("upstreams", "Upstreams", &UPSTREAM),
        one("transparent_proxy", "TransparentProxy", &TRANSPARENT_PROXY),
        free("config", "Config"),
    ],
    json_only: &["ExposeConfig"],
    finish: finish::none,
};

pub(super) static MESH_GATEWAY: BlockSpec =
    BlockSpec { label: None, attributes: &[a("mode", "Mode", Kind::Text)], blocks: &[], json_only: &[], finish: finish::none };

pub(super) static UPSTREAM: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
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
    ],
    blocks: &[one("mesh_gateway", "MeshGateway", &MESH_GATEWAY), free("config", "Config")],
    json_only: &[],
    finish: finish::none,
};

pub(super) static TRANSPARENT_PROXY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("uid", "UID", Kind::Text),
        a("outbound_port", "OutboundPort", PORT),
        a("exclude_inbound_ports", "ExcludeInboundPorts", Kind::Texts),
        a("exclude_outbound_ports", "ExcludeOutboundPorts", Kind::Ports),
        a("exclude_outbound_cidrs", "ExcludeOutboundCIDRs", Kind::Texts),
        a("exclude_uids", "ExcludeUIDs", Kind::Texts),
        a("no_dns", "NoDNS", Kind::Bool),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static EXPOSE: BlockSpec =
    BlockSpec { label: None, attributes: &[], blocks: &[many("path", "Paths", &EXPOSE_PATH)], json_only: &[], finish: finish::none };

pub(super) static EXPOSE_PATH: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("path", "Path", Kind::Text),
        a("protocol", "Protocol", Kind::Text),
        a("local_path_port", "LocalPathPort", INT),
        a("listener_port", "ListenerPort", Kind::Text),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static GATEWAY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[],
    blocks: &[
        one("proxy", "Proxy", &GATEWAY_PROXY),
        one("ingress", "Ingress", &INGRESS),
        one("terminating", "Terminating", &TERMINATING),
        one("mesh", "Mesh", &MESH),
    ],
    json_only: &[],
    finish: finish::none,
};

pub(super) static GATEWAY_PROXY: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("connect_timeout", "ConnectTimeout", Kind::Duration),
        a("envoy_gateway_bind_tagged_addresses", "EnvoyGatewayBindTaggedAddresses", Kind::Bool),
        a("envoy_gateway_no_default_bind", "EnvoyGatewayNoDefaultBind", Kind::Bool),
        a("envoy_dns_discovery_type", "EnvoyDNSDiscoveryType", Kind::Text),
    ],
    blocks: &[by_label("envoy_gateway_bind_addresses", "EnvoyGatewayBindAddresses", &GATEWAY_BIND), free("config", "Config")],
    json_only: &[],
    finish: finish::none,
};

pub(super) static GATEWAY_BIND: BlockSpec = BlockSpec {
    label: Some("Name"),
    attributes: &[a("address", "Address", Kind::Text), a("port", "Port", INT)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static GATEWAY_TLS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("enabled", "Enabled", Kind::Bool),
        a("tls_min_version", "TLSMinVersion", Kind::Text),
        a("tls_max_version", "TLSMaxVersion", Kind::Text),
        a("cipher_suites", "CipherSuites", Kind::Texts),
    ],
    blocks: &[one("sds", "SDS", &GATEWAY_SDS)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static GATEWAY_SDS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("cluster_name", "ClusterName", Kind::Text), a("cert_resource", "CertResource", Kind::Text)],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static INGRESS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[],
    blocks: &[one("tls", "TLS", &GATEWAY_TLS), many("listener", "Listeners", &INGRESS_LISTENER)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static INGRESS_LISTENER: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("port", "Port", INT), a("protocol", "Protocol", Kind::Text)],
    blocks: &[many("service", "Services", &INGRESS_SERVICE)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static INGRESS_SERVICE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("name", "Name", Kind::Text),
        a("hosts", "Hosts", Kind::Texts),
        a("max_connections", "MaxConnections", COUNT),
        a("max_pending_requests", "MaxPendingRequests", COUNT),
        a("max_concurrent_requests", "MaxConcurrentRequests", COUNT),
    ],
    blocks: &[
        one("tls", "TLS", &GATEWAY_TLS),
        one("request_headers", "RequestHeaders", &GATEWAY_HEADERS),
        one("response_headers", "ResponseHeaders", &GATEWAY_HEADERS),
    ],
    json_only: &[],
    finish: finish::none,
};

pub(super) static GATEWAY_HEADERS: BlockSpec = BlockSpec {
    label: None,
    attributes: &[a("remove", "Remove", Kind::Texts)],
    blocks: &[texts("add", "Add"), texts("set", "Set")],
    json_only: &[],
    finish: finish::none,
};

pub(super) static TERMINATING: BlockSpec = BlockSpec {
    label: None,
    attributes: &[],
    blocks: &[many("service", "Services", &LINKED_SERVICE)],
    json_only: &[],
    finish: finish::none,
};

pub(super) static LINKED_SERVICE: BlockSpec = BlockSpec {
    label: None,
    attributes: &[
        a("name", "Name", Kind::Text),
        a("ca_file", "CAFile", Kind::Text),
        a("cert_file", "CertFile", Kind::Text),
        a("key_file", "KeyFile", Kind::Text),
        a("sni", "SNI", Kind::Text),
    ],
    blocks: &[],
    json_only: &[],
    finish: finish::none,
};

pub(super) static MESH: BlockSpec = BlockSpec { label: None, attributes: &[], blocks: &[], json_only: &[], finish: finish::none };
