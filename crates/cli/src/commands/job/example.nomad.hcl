# A job is what people submit: groups of tasks that run together, and how many of each.
#
#   drover job run example.nomad.hcl      submit it and follow it
#   drover job status example             how it is
#   drover logs -f example                what it writes
#   drover job stop example               stop it

job "example" {
  # What kind of work it is: "service" runs until it is stopped, "batch" until it ends, "system" on every node.
  type = "service"

  # The tasks of a group run on the same node, and share a directory and a network.
  group "web" {
    # How many of this group run.
    count = 1

    # What a changed job waits for before it goes on to the next allocation.
    update {
      health_check      = "task_states"
      min_healthy_time  = "1s"
      healthy_deadline  = "1m"
      progress_deadline = "5m"
    }

    # What happens when a task ends: it is started again on its node, this often in this time.
    restart {
      attempts = 3
      interval = "5m"
      delay    = "1s"
      mode     = "fail"
    }

    # A task is one process or container; its driver says how it is run.
    task "hello" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while true; do echo \"$GREETING from $NOMAD_ALLOC_NAME\"; sleep 5; done"]
      }

      # Variables of its environment.
      env {
        GREETING = "hello"
      }

      # What it needs of a node: MHz and MiB.
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
