# A node that runs local tasks and manages remote ones.
data_dir = "/var/lib/drover/client"

ports {
  http = 4656
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The file server/join-secret of the server's data directory. Copy it to nodes on other machines.
drover {
  join_secret_file = "/var/lib/drover/server/server/join-secret"
}

# Tasks of raw_exec run as the user of this agent, without isolation: everyone who may submit jobs acts as that
# user. The driver is off unless you enable it here.
plugin "raw_exec" {
  config {
    enabled = true
  }
}

# The runtime of remote_exec: a directory that belongs to no node. Every node that names the same directory can
# manage its tasks.
plugin "remote_exec" {
  config {
    transport = "local"
    root      = "/var/lib/drover/runtime"
  }
}
