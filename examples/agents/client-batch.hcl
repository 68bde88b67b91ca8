# A node that manages jobs of an AWS Batch queue. The plugin directory holds drover-driver-batch under the name `batch`.
data_dir   = "/var/lib/drover/client-batch"
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

plugin "batch" {
  config {
    enabled   = true
    job_queue = "arn:aws:batch:eu-west-1:123456789012:job-queue/nightly"
  }
}
