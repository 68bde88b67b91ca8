job "agent" {
  type        = "system"
  datacenters = ["*"]

  constraint {
    distinct_hosts = true
  }
  constraint {
    distinct_property = "${meta.rack}"
    value             = "2"
  }
  constraint {
    attribute = "${attr.nomad.version}"
    version   = ">= 1.6, < 2.0"
  }
  constraint {
    attribute = "${attr.os.version}"
    semver    = ">= 22"
  }
  constraint {
    attribute = "${node.class}"
    regexp    = "^gpu-[0-9]+$"
  }
  constraint {
    attribute    = "${meta.features}"
    set_contains = "ssd,avx"
  }
  constraint {
    attribute = "${meta.zone}"
    operator  = "is_set"
  }
  constraint {
    attribute = "${attr.cpu.arch}"
    operator  = "!="
    value     = "arm64"
  }

  affinity {
    attribute = "${node.datacenter}"
    value     = "dc1"
    weight    = -30
  }
  affinity {
    attribute        = "${meta.features}"
    set_contains_any = "nvme"
    weight           = 80
  }

  spread {
    attribute = "${node.datacenter}"
    weight    = 100
    target "dc1" {
      percent = 70
    }
    target "dc2" {
      percent = 30
    }
  }

  group "g" {
    disconnect {
      lost_after = "6h"
      replace    = false
      reconcile  = "keep_original"
    }
    task "collect" {
      driver = "exec"
      config {
        command = "collect"
      }
      resources {
        cpu    = 20
        memory = 30
        device "nvidia/gpu" {
          count = 2
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "4 GiB"
          }
          affinity {
            attribute = "${device.model}"
            regexp    = "A100"
            weight    = 50
          }
        }
      }
    }
  }
}
