# Remote tasks on ECS (examples/agents/client-ecs.hcl). The driver makes the task definition. Nodes may come
# and go. Name the networks of your own account:
#
#   drover job run -var 'subnets=["subnet-…"]' -var 'security_groups=["sg-…"]' examples/remote-ecs.nomad.hcl

variable "subnets" {
  type    = list(string)
  default = ["subnet-0cd4b2ec21331a144", "subnet-0da9019dcab8ae2f1"]
}

variable "security_groups" {
  type    = list(string)
  default = ["sg-05f444f6c0dda876d"]
}

job "greeter" {
  type = "service"

  group "greeter" {
    count = 2

    task "web" {
      driver       = "ecs"
      kill_timeout = "1m"

      config {
        task {
          launch_type        = "FARGATE"
          execution_role_arn = "arn:aws:iam::123456789012:role/ecsTaskExecutionRole"
          command            = ["httpd", "-f", "-v", "-p", "8080"]

          ports = {
            http = 8080
          }

          container {
            image     = "public.ecr.aws/docker/library/busybox:1.37"
            log_group = "/drover/greeter"
          }

          network_configuration {
            aws_vpc_configuration {
              assign_public_ip = "ENABLED"
              security_groups  = var.security_groups
              subnets          = var.subnets
            }
          }
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
