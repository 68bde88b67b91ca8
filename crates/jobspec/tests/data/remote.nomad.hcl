job "elsewhere" {
  type = "service"
  group "far" {
    task "worker" {
      driver = "remote_exec"
      config {
        command   = "/bin/sh"
        args      = ["-c", "while true; do echo $(( i = i + 1 )); sleep 1; done"]
        transport = "local"
      }
      resources {
        cpu    = 50
        memory = 32
      }
    }
  }
}
