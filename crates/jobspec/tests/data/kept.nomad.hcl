# What is read and kept although nothing runs it: it is refused when the job is submitted, not while it is read.
job "kept" {
  multiregion {
    strategy {
      max_parallel = 1
      on_failure   = "fail_all"
    }
    region "west" {
      count       = 2
      datacenters = ["west-1"]
      meta {
        a = "b"
      }
    }
  }
  vault {
    policies = ["all"]
  }
  ui {
    description = "A **job**"
    link {
      label = "docs"
      url   = "https://example.com"
    }
  }
  group "g" {
    consul {
      namespace = "ns"
    }
    network {
      mode = "bridge"
    }
    service {
      name = "api"
      port = "9001"
      connect {
        sidecar_service {
          proxy {
            upstreams {
              destination_name = "db"
              local_bind_port  = 5432
            }
            config {
              protocol = "http"
            }
            expose {
              path {
                path            = "/health"
                protocol        = "http"
                local_path_port = 9001
                listener_port   = "health"
              }
            }
          }
        }
        sidecar_task {
          resources {
            cpu = 50
          }
        }
      }
      tagged_addresses {
        wan = "1.2.3.4"
      }
      weights {
        passing = 10
        warning = 1
      }
    }
    service {
      connect {
        gateway {
          proxy {
            connect_timeout = "5s"
            envoy_gateway_bind_addresses "a" {
              address = "10.0.0.1"
              port    = 8888
            }
          }
          ingress {
            listener {
              port     = 8080
              protocol = "tcp"
              service {
                name = "web"
              }
            }
          }
        }
      }
    }
    task "own" {
      driver = "exec"
      vault {
        policies    = ["one"]
        change_mode = "noop"
      }
      csi_plugin {
        id        = "p"
        type      = "monolith"
        mount_dir = "/csi"
      }
      schedule {
        cron {
          start    = "0 30 9 * * * *"
          end      = "30 16"
          timezone = "Local"
        }
      }
      resources {
        cpu = 100
        network {
          mbits = 10
          port "http" {}
          port "ssh" {
            static = 22
          }
        }
        numa {
          affinity = "require"
        }
      }
      template {
        source      = "local/t"
        destination = "local/x"
        wait {
          min = "2s"
          max = "10s"
        }
        change_script {
          command       = "/bin/reload"
          fail_on_error = true
        }
      }
    }
    task "inherits" {
      driver = "exec"
    }
  }
  task "bare" {
    driver = "exec"
    config {
      command = "true"
    }
  }
}
