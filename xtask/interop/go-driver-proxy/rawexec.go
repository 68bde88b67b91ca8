// Package rawexec has the names that the stock tests of raw_exec use, over a plugin.
package rawexec

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/droverproxy"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
)

const pluginName = "raw_exec"

var (
	taskConfigSpec    = droverproxy.Schema(pluginName)
	errDisabledDriver = errors.New("raw_exec is disabled")
)

// Config is what the tests configure the plugin with.
type Config struct {
	Enabled        bool   `codec:"enabled"`
	DeniedHostUids string `codec:"denied_host_uids"`
	DeniedHostGids string `codec:"denied_host_gids"`
}

// TaskConfig is the options of a task.
type TaskConfig struct {
	Command          string            `codec:"command"`
	Args             []string          `codec:"args"`
	OverrideCgroupV2 string            `codec:"cgroup_v2_override"`
	OverrideCgroupV1 map[string]string `codec:"cgroup_v1_override"`
	OOMScoreAdj      int               `codec:"oom_score_adj"`
	WorkDir          string            `codec:"work_dir"`
}

// validate is what the plugin says about a task with these options.
func (c *TaskConfig) validate() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d := NewRawExecDriver(ctx, hclog.NewNullLogger()).(*Driver)
	d.config.Enabled = true
	options := *c
	options.Command, options.Args = "/bin/sleep", []string{"0"}
	return d.Attempt(&options, "")
}

// Driver is the plugin, with the fields that the tests set.
type Driver struct {
	*droverproxy.Plugin
	config      *Config
	nomadConfig *base.ClientDriverConfig
	tasks       *droverproxy.Tasks
	// The tests' own always agrees, as the plugin does without denied ids.
	userIDValidator interface{ HasValidIDs(string) error }
}

// NewRawExecDriver is a driver whose plugin is not launched yet.
func NewRawExecDriver(ctx context.Context, logger hclog.Logger) drivers.DriverPlugin {
	d := &Driver{Plugin: droverproxy.New(ctx, pluginName, logger), config: &Config{}}
	d.tasks = &droverproxy.Tasks{Plugin: d.Plugin}
	d.Preset = func() *base.Config {
		var data []byte
		if err := base.MsgPackEncode(&data, d.config); err != nil {
			panic(err)
		}
		return &base.Config{PluginConfig: data, AgentConfig: &base.AgentConfig{Driver: d.nomadConfig}}
	}
	return d
}

// SetConfig hands the configuration on; what the plugin has taken is the driver's.
func (d *Driver) SetConfig(sent *base.Config) error {
	if err := d.Plugin.SetConfig(sent); err != nil {
		return err
	}
	var config Config
	if err := base.MsgPackDecode(sent.PluginConfig, &config); err != nil {
		return err
	}
	d.config = &config
	if sent.AgentConfig != nil {
		d.nomadConfig = sent.AgentConfig.Driver
	}
	return nil
}

// Validate is what the plugin, enabled and otherwise configured as here, says about a task of this user.
func (d *Driver) Validate(task drivers.TaskConfig) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	other := NewRawExecDriver(ctx, hclog.NewNullLogger()).(*Driver)
	*other.config = *d.config
	other.config.Enabled, other.nomadConfig = true, d.nomadConfig
	return other.Attempt(&TaskConfig{Command: "/bin/sleep", Args: []string{"0"}}, task.User)
}
