# A node that runs local tasks and manages remote ones.
data_dir = "/var/lib/drover/client"

ports {
  http = 4656
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The runtime of remote_exec: a directory that belongs to no node. Every node that names the same one can manage what runs there.
plugin "remote_exec" {
  config {
    transport = "local"
    root      = "/var/lib/drover/runtime"
  }
}
