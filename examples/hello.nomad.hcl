# A local service: a shell loop under the raw_exec driver. It shows variables, run-time interpolation
# and log capture.
#
#   drover job run examples/hello.nomad.hcl
#   drover job run -var greeting=Servus examples/hello.nomad.hcl

variable "greeting" {
  type        = string
  default     = "Hello"
  description = "What the task says, once a second."

  validation {
    condition     = strlen(var.greeting) > 0
    error_message = "The greeting must not be empty."
  }
}

job "hello" {
  datacenters = ["*"]
  type        = "service"

  group "greeters" {
    count = 1

    restart {
      attempts = 3
      interval = "5m"
      delay    = "1s"
      mode     = "fail"
    }

    update {
      health_check      = "task_states"
      min_healthy_time  = "1s"
      healthy_deadline  = "30s"
      progress_deadline = "1m"
    }

    task "greet" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-SCRIPT
          n=0
          while true; do
            n=$((n + 1))
            echo "$GREETING from ${NOMAD_TASK_NAME} on ${node.unique.name}, number $n"
            sleep 1
          done
          SCRIPT
        ]
      }

      env {
        GREETING = var.greeting
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }
  }
}
