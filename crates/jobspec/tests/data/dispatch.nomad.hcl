job "encode" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["source", "target"]
    meta_optional = ["quality"]
  }

  meta = {
    "quality"     = "high"
    "dotted.name" = 1
  }

  group "encode" {
    task "ffmpeg" {
      driver = "exec"
      config {
        command = "ffmpeg"
        args = [
          "-i", "${NOMAD_META_source}",
          "${NOMAD_META_target}",
        ]
      }
      dispatch_payload {
        file = "config.json"
      }
      env = {
        "QUALITY"  = "${NOMAD_META_quality}"
        "A.DOTTED" = true
      }
    }
  }
}
