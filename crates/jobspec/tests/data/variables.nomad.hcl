variable "image" {
  type        = string
  description = "what to run"
}

variable "replicas" {
  type    = number
  default = 2
  validation {
    condition     = var.replicas > 0 && var.replicas <= 10
    error_message = "There must be from 1 to 10 replicas."
  }
}

variable "ports" {
  type = map(object({ port = number, public = bool }))
  default = {
    http = { port = 8080, public = true }
    grpc = { port = 9090, public = false }
  }
}

variable "zones" {
  type    = list(string)
  default = ["a", "b"]
}

variables {
  prefix = "prod"
  debug  = false
}

locals {
  name   = "${local.base}-api"
  base   = var.prefix
  public = [for name, p in var.ports : name if p.public]
  env = merge(
    { for z in var.zones : "ZONE_${upper(z)}" => z },
  )

}

job "variables" {
  name = local.name

  group "api" {
    count = var.replicas

    network {
      dynamic "port" {
        for_each = var.ports
        labels   = [port.key]
        content {
          to = port.value.port
        }
      }
    }

    dynamic "task" {
      for_each = var.zones
      iterator = zone
      labels   = ["api-${zone.value}"]
      content {
        driver = "docker"
        config {
          image = var.image
          args  = concat(["--zone", zone.value], var.debug ? ["--debug"] : [])
        }
        env = { for z in var.zones : "ZONE_${upper(z)}" => z }
        meta {
          public = join(",", local.public)
          index  = zone.key
        }
        template {
          destination = "local/list"
          data        = <<EOT
%{ for name, p in var.ports ~}
${name}=${p.port}
%{ endfor ~}
%{ if var.debug }debug%{ else }quiet%{ endif }
EOT
        }
      }
    }
  }
}
