job "{{project-name}}" {
  group "main" {
    task "hello" {
      driver = "{{crate_name}}"

      config {
        script = <<-EOF
          echo "hello from $NOMAD_TASK_NAME, process $$"
          while true; do
            sleep 1
            date
          done
        EOF
      }

      resources {
        cpu    = 50
        memory = 16
      }
    }
  }
}
