job "lifecycle" {
  group "app" {
    shutdown_delay = "3s"
    update {
      max_parallel = 1
      canary       = 1
      auto_promote = true
    }
    migrate {
      max_parallel     = 2
      health_check     = "task_states"
      min_healthy_time = "5s"
    }
    volume "data" {
      type      = "host"
      source    = "app-data"
      read_only = false
    }
    volume "shared" {
      type            = "csi"
      source          = "shared"
      access_mode     = "multi-node-multi-writer"
      attachment_mode = "file-system"
      per_alloc       = true
      mount_options {
        fs_type     = "ext4"
        mount_flags = ["noatime"]
      }
    }
    scaling {
      enabled = true
      min     = 1
      max     = 5
      policy {
        cooldown = "1m"
        check "load" {
          source = "prometheus"
          query  = "avg(load)"
          strategy "target-value" {
            target = 0.7
          }
        }
      }
    }
    task "init" {
      driver = "raw_exec"
      lifecycle {
        hook = "prestart"
      }
      config {
        command = "true"
      }
    }
    task "proxy" {
      driver = "raw_exec"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      config {
        command = "sleep"
        args    = ["1000"]
      }
    }
    task "main" {
      driver = "raw_exec"
      leader = true
      config {
        command = "sleep"
        args    = [1000, true]
      }
      volume_mount {
        volume           = "data"
        destination      = "/data"
        propagation_mode = "host-to-task"
      }
      action "hello" {
        command = "echo"
        args    = ["hello"]
      }
      identity {
        env  = true
        file = true
      }
      identity {
        name        = "vault"
        aud         = ["vault.io"]
        ttl         = "1h"
        change_mode = "restart"
      }
      scaling "cpu" {
        min = 100
        max = 1000
        policy {}
      }
    }
    task "cleanup" {
      driver = "raw_exec"
      lifecycle {
        hook = "poststop"
      }
      config {
        command = "true"
      }
    }
  }
}
