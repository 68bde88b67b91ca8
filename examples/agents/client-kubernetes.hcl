# A node that manages remote tasks of a Kubernetes cluster. The plugin directory holds drover-driver-kubernetes under
# the name `kubernetes`.
data_dir   = "/var/lib/drover/client-kubernetes"
plugin_dir = "/opt/drover/plugins"

ports {
  http = 4669
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The file server/join-secret of the server's data directory. Copy it to nodes on other machines.
drover {
  join_secret_file = "/var/lib/drover/server/server/join-secret"
}

plugin "kubernetes" {
  config {
    enabled    = true
    kubeconfig = "/etc/drover/kubeconfig"
    namespace  = "drover-tasks"
  }
}
