# A batch job: three allocations, each runs to its end. A for expression makes the environment.

locals {
  squares = { for n in range(1, 4) : "SQUARE_${n}" => n * n }
}

job "batch" {
  type = "batch"

  group "workers" {
    count = 3

    restart {
      attempts = 1
      delay    = "1s"
    }

    task "work" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo worker $NOMAD_ALLOC_INDEX: $SQUARE_1 $SQUARE_2 $SQUARE_3"]
      }

      env = local.squares

      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}
