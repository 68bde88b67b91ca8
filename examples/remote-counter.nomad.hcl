# A remote task: it runs in a runtime outside every node, and a node only manages it. Whatever happens to
# that node, the instance keeps its pid and continues to count.

job "counter" {
  type = "service"

  group "counter" {
    count = 1

    task "count" {
      driver = "remote_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "n=0; while true; do n=$((n + 1)); echo $n; sleep 0.1; done"]
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }
  }
}
