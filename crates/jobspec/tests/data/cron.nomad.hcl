job "nightly-report" {
  type      = "batch"
  namespace = "reports"

  periodic {
    crons            = ["0 3 * * *", "0 15 * * SUN"]
    prohibit_overlap = true
    time_zone        = "Europe/Berlin"
  }

  reschedule {
    attempts  = 3
    interval  = "24h"
    unlimited = false
    delay     = "30s"
  }

  group "report" {
    ephemeral_disk {
      size    = 500
      sticky  = true
      migrate = true
    }
    task "make" {
      driver = "raw_exec"
      config {
        command = "/usr/bin/env"
        args    = ["bash", "-c", "echo ${NOMAD_JOB_NAME} at $(date)"]
      }
      resources {
        cores  = 2
        memory = 128
      }
      restart {
        attempts = 0
        mode     = "fail"
      }
    }
  }
}
