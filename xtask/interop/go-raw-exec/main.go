// Nomad's own raw_exec driver, served as an external plugin binary: the interop target of `cargo xtask interop`. With
// the argument "device" it serves Nomad's example of a device plugin instead.
package main

import (
	"context"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/rawexec"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/device/cmd/example"
)

func main() {
	plugins.Serve(func(log hclog.Logger) interface{} {
		if len(os.Args) > 1 && os.Args[1] == "device" {
			return example.NewExampleDevice(log)
		}
		return rawexec.NewRawExecDriver(context.Background(), log)
	})
}
