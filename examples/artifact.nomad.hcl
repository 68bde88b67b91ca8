# A task that fetches its program: an archive from a web server, verified before it is unpacked.
#
#   python3 -m http.server 8080            # in a directory with greeting.tar.gz, which holds greet.sh
#   drover job run -var sum=sha256:$(sha256sum greeting.tar.gz | cut -d' ' -f1) examples/artifact.nomad.hcl

variable "url" {
  type    = string
  default = "http://127.0.0.1:8080/greeting.tar.gz"
}

variable "sum" {
  type        = string
  description = "What the archive must be, as TYPE:HEX"
}

job "artifact" {
  type = "batch"

  group "fetching" {
    restart {
      attempts = 2
      delay    = "1s"
    }

    task "greet" {
      driver = "raw_exec"

      artifact {
        source      = var.url
        destination = "local/greeting"

        options {
          checksum = var.sum
        }
      }

      config {
        command = "/bin/sh"
        args    = ["${NOMAD_TASK_DIR}/greeting/greet.sh", "${NOMAD_TASK_NAME}"]
      }

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
