# A batch task as a pod of a Kubernetes cluster. It outlives the node that manages it.
# Needs nodes with the driver kubernetes: docs/guides/remote-tasks-on-kubernetes.md

job "crunch-kubernetes" {
  type = "batch"

  group "g" {
    task "crunch" {
      driver = "kubernetes"

      config {
        image   = "busybox:1"
        command = "/bin/sh"
        args    = ["-c", "for n in 1 2 3 4 5; do echo step $n on $(hostname); sleep 1; done"]
      }

      resources {
        cpu    = 250
        memory = 64
      }
    }
  }
}
