# A node that manages remote tasks of an HTCondor pool. The plugin directory holds drover-driver-htcondor under the
# name `htcondor`.
data_dir   = "/var/lib/drover/client-htcondor"
plugin_dir = "/opt/drover/plugins"

ports {
  http = 4670
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The file server/join-secret of the server's data directory. Copy it to nodes on other machines.
drover {
  join_secret_file = "/var/lib/drover/server/server/join-secret"
}

plugin "htcondor" {
  config {
    # The same directory on all managers and execute nodes.
    base   = "/shared/drover"
    schedd = "submit.example.org"
    # HTCondor takes no jobs of root.
    user   = "drover"
  }
}
