# A remote task on AWS Batch (examples/agents/client-batch.hcl). The driver registers the job definition. Nodes may come
# and go. Batch makes one attempt; the blocks `restart` and `reschedule` say what follows a failure.

job "crunch" {
  type = "batch"

  group "crunch" {
    task "numbers" {
      driver       = "batch"
      kill_timeout = "30s"

      config {
        image              = "public.ecr.aws/docker/library/busybox:1.37"
        command            = ["sh", "-c", "echo $GREETING; sleep 60"]
        platform           = "FARGATE"
        execution_role_arn = "arn:aws:iam::123456789012:role/ecsTaskExecutionRole"
        assign_public_ip   = true
        timeout            = "10m"

        tags = {
          team = "research"
        }
      }

      env {
        GREETING = "hello"
      }

      resources {
        cpu    = 256
        memory = 512
      }
    }
  }
}
