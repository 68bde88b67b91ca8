# A node that manages remote tasks of an ECS cluster. The plugin directory holds drover-driver-ecs under the name `ecs`.
data_dir   = "/var/lib/drover/client-ecs"
plugin_dir = "/opt/drover/plugins"

ports {
  http = 4667
}

client {
  enabled = true
  servers = ["127.0.0.1:4647"]
}

# The file server/join-secret of the server's data directory. Copy it to nodes on other machines.
drover {
  join_secret_file = "/var/lib/drover/server/server/join-secret"
}

plugin "ecs" {
  config {
    enabled = true
    cluster = "arn:aws:ecs:eu-west-1:123456789012:cluster/prod"
  }
}
