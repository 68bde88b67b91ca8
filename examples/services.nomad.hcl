# A service in the cluster's own registry, with a check that restarts the task when it fails.
#
#   drover job run examples/services.nomad.hcl
#   drover service info greeter
#   drover alloc checks ALLOC

job "services" {
  type = "service"

  group "greeter" {
    count = 2

    network {
      port "http" {}
    }

    update {
      health_check      = "checks"
      min_healthy_time  = "1s"
      healthy_deadline  = "30s"
      progress_deadline = "1m"
    }

    # Clients that have looked the service up get this long to look again before it ends.
    shutdown_delay = "500ms"

    service {
      name     = "greeter"
      provider = "nomad"
      port     = "http"
      tags     = ["blue", "on-${node.unique.name}"]

      meta {
        protocol = "none"
      }

      check {
        name     = "ready"
        type     = "script"
        task     = "greet"
        command  = "/bin/sh"
        args     = ["-c", "test -e \"$NOMAD_TASK_DIR/ready\" || exit 2"]
        interval = "1s"
        timeout  = "5s"

        check_restart {
          limit = 3
          grace = "5s"
        }
      }
    }

    task "greet" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo greeting on $NOMAD_ADDR_http; touch \"$NOMAD_TASK_DIR/ready\"; while true; do sleep 1; done"]
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }
  }
}
