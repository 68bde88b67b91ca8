# A task with a directory of its node that outlives it, and one that it may only read. The agent offers them, and `shared` is writable
# for the user that the task runs as (nobody, unless it names another):
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
