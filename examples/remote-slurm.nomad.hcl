# A batch task on a Slurm cluster. It outlives the node that manages it.
# Needs nodes with the driver slurm: docs/guides/remote-tasks-on-slurm.md

job "crunch-slurm" {
  type = "batch"

  group "g" {
    task "crunch" {
      driver = "slurm"

      config {
        command = "/bin/sh"
        args    = ["-c", "for n in 1 2 3 4 5; do echo step $n on $(hostname); sleep 1; done"]

        # Without a limit the partition's own ends the task.
        time = "01:00:00"
      }

      resources {
        cpu    = 1000
        memory = 128
      }
    }
  }
}
