# A node that manages remote tasks of a Slurm cluster. The plugin directory holds drover-driver-slurm under the name
# `slurm`.
data_dir   = "/var/lib/drover/client-slurm"
plugin_dir = "/opt/drover/plugins"

ports {
  http = 4668
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The file server/join-secret of the server's data directory. Copy it to nodes on other machines.
drover {
  join_secret_file = "/var/lib/drover/server/server/join-secret"
}

plugin "slurm" {
  config {
    # The same directory on all managers and compute nodes.
    base = "/shared/drover"
  }
}
