# A service with a prestart task, a sidecar and a dynamic port. It updates one allocation at a time.

job "lifecycle" {
  group "web" {
    count = 2

    network {
      port "http" {}
    }

    update {
      max_parallel     = 1
      health_check     = "task_states"
      min_healthy_time = "1s"
      healthy_deadline = "30s"
    }

    constraint {
      attribute = "${attr.kernel.name}"
      value     = "linux"
    }

    spread {
      attribute = "${node.unique.id}"
    }

    task "prepare" {
      driver = "raw_exec"

      lifecycle {
        hook = "prestart"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo prepared by $NOMAD_ALLOC_ID > $NOMAD_ALLOC_DIR/data/prepared"]
      }

      resources {
        cpu    = 10
        memory = 10
      }
    }

    task "watch" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do echo watching port $NOMAD_PORT_http; sleep 5; done"]
      }

      resources {
        cpu    = 10
        memory = 10
      }
    }

    task "serve" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "cat $NOMAD_ALLOC_DIR/data/prepared; echo serving on $NOMAD_ADDR_http; exec sleep 100000"]
      }

      kill_timeout = "2s"

      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
