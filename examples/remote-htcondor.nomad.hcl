# A batch task on an HTCondor pool. It outlives the node that manages it.
# Needs nodes with the driver htcondor: docs/guides/remote-tasks-on-htcondor.md

job "crunch-htcondor" {
  type = "batch"

  group "g" {
    task "crunch" {
      driver = "htcondor"

      config {
        command = "/bin/sh"
        args    = ["-c", "for n in 1 2 3 4 5; do echo step $n on $(hostname); sleep 1; done"]
      }

      resources {
        cpu    = 1000
        memory = 128
      }
    }
  }
}
