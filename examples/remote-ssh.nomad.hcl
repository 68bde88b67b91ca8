# Remote tasks on hosts over ssh (examples/agents/client-ssh.hcl), on any host of the pool that has these
# labels and room. Nodes may come and go.

job "crunch" {
  type = "service"

  group "crunch" {
    count = 2

    task "count" {
      driver = "remote_exec"

      config {
        command  = "/bin/sh"
        args     = ["-c", "n=0; while true; do n=$((n + 1)); echo $n on $(hostname); sleep 1; done"]
        work_dir = "local"

        labels = {
          zone = "east"
        }
      }

      resources {
        cpu    = 100
        memory = 32
      }
    }
  }
}
