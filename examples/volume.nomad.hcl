# A task with two directories of its node: one that outlives the task, and one that is read-only. The agent
# offers them. Make `shared` writable for the user of the task (nobody, unless it names another):
#
#   client {
#     host_volume "shared"  { path = "/srv/shared" }
#     host_volume "certs"   { path = "/etc/ssl/certs" read_only = true }
#   }

job "volume" {
  type = "batch"

  group "writing" {
    volume "shared" {
      type   = "host"
      source = "shared"
    }

    volume "certs" {
      type      = "host"
      source    = "certs"
      read_only = true
    }

    task "write" {
      driver = "exec"

      volume_mount {
        volume      = "shared"
        destination = "/data"
      }

      volume_mount {
        volume      = "certs"
        destination = "/certs"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo written >> /data/log; touch /certs/x 2>/dev/null && echo broken; cat /data/log"]
      }

      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
