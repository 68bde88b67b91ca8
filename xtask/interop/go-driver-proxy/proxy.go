// Package droverproxy stands between the stock project's tests of a driver, which hold the driver in their own process, and a plugin that is a
// program: it launches the plugin through the stock plugin client, as a stock agent does, and hands every call on.
package droverproxy

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/ci"
	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"google.golang.org/grpc/status"
)

// programVariable names the program that serves the drivers: `<program> driver <name>`.
const programVariable = "DROVER_PROGRAM"

// Plugin is a driver whose calls a plugin process answers. It is launched by the first call.
type Plugin struct {
	// Preset tells the configuration that a test has laid into the driver instead of sending it.
	Preset func() *base.Config

	ctx    context.Context
	name   string
	logger hclog.Logger

	lock   sync.Mutex
	sent   *base.Config
	client *plugin.Client
	driver drivers.DriverPlugin
}

// New is a driver of this name; the plugin ends with the context.
func New(ctx context.Context, name string, logger hclog.Logger) *Plugin {
	p := &Plugin{ctx: ctx, name: name, logger: logger}
	context.AfterFunc(ctx, p.end)
	return p
}

// Schema asks a plugin of this name for the schema of a task's options.
func Schema(name string) *hclspec.Spec {
	// The test program is also what tasks run: those need none.
	if os.Getenv("TEST_TASK") != "" {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	p := New(ctx, name, hclog.NewNullLogger())
	defer p.end()
	spec, err := p.TaskConfigSchema()
	if err != nil {
		panic(err)
	}
	return spec
}

func (p *Plugin) end() {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.stop()
}

func (p *Plugin) stop() {
	if p.client != nil {
		p.client.Kill()
	}
	p.client, p.driver = nil, nil
}

// launch starts the plugin unless it runs; the lock is held.
func (p *Plugin) launch() error {
	if p.driver != nil {
		return nil
	}
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: base.Handshake,
		Plugins: map[string]plugin.Plugin{
			base.PluginTypeBase:   &base.PluginBase{},
			base.PluginTypeDriver: drivers.NewDriverPlugin(nil, p.logger),
		},
		Cmd:              exec.Command(os.Getenv(programVariable), "driver", p.name),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Logger:           p.logger,
	})
	rpc, err := client.Client()
	if err != nil {
		client.Kill()
		return err
	}
	raw, err := rpc.Dispense(base.PluginTypeDriver)
	if err != nil {
		client.Kill()
		return err
	}
	p.client, p.driver = client, raw.(drivers.DriverPlugin)
	return nil
}

// up is the plugin with its configuration.
func (p *Plugin) up() (drivers.DriverPlugin, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	fresh := p.driver == nil
	if err := p.launch(); err != nil {
		return nil, err
	}
	if fresh {
		config := p.sent
		if config == nil && p.Preset != nil {
			config = p.Preset()
		}
		if config != nil {
			if err := p.driver.SetConfig(config); err != nil {
				p.stop()
				return nil, err
			}
		}
	}
	return p.driver, nil
}

// Restart kills the plugin process, as a crash would: the next one knows no task.
func (p *Plugin) Restart() {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.client != nil {
		if process, err := os.FindProcess(p.client.ReattachConfig().Pid); err == nil {
			_ = process.Kill()
		}
	}
	p.stop()
}

// Attempt starts a short task with these options in directories of its own, and destroys it: what the plugin says about it.
func (p *Plugin) Attempt(options any, user string) error {
	dir, err := os.MkdirTemp("", "attempt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	capabilities, err := p.Capabilities()
	if err != nil {
		return err
	}
	task := &drivers.TaskConfig{
		ID: uuid.Generate(), AllocID: uuid.Generate(), Name: "attempt", User: user, StdoutPath: os.DevNull, StderrPath: os.DevNull,
		Env:       map[string]string{},
		Resources: &drivers.Resources{NomadResources: &structs.AllocatedTaskResources{}, LinuxResources: &drivers.LinuxResources{}},
	}
	alloc := allocdir.NewAllocDir(p.logger, dir+"/allocs", dir+"/mounts", task.AllocID)
	if err := alloc.Build(); err != nil {
		return err
	}
	defer func() { _ = alloc.Destroy() }()
	task.AllocDir = alloc.AllocDir
	if err := alloc.NewTaskDir(&structs.Task{Name: task.Name}).Build(capabilities.FSIsolation, ci.TinyChroot, user); err != nil {
		return err
	}
	if err := task.EncodeConcreteDriverConfig(options); err != nil {
		return err
	}
	if _, _, err := p.StartTask(task); err != nil {
		return Plain(err)
	}
	return p.DestroyTask(task.ID, true)
}

// Plain is an error without what the wire puts around its text.
func Plain(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(status.Convert(err).Message())
}

func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.PluginInfo()
}

func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.ConfigSchema()
}

// SetConfig hands the configuration on; a plugin that is launched again gets it too.
func (p *Plugin) SetConfig(config *base.Config) error {
	p.lock.Lock()
	defer p.lock.Unlock()
	if err := p.launch(); err != nil {
		return err
	}
	if err := p.driver.SetConfig(config); err != nil {
		return err
	}
	p.sent = config
	return nil
}

func (p *Plugin) TaskConfigSchema() (*hclspec.Spec, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.TaskConfigSchema()
}

func (p *Plugin) Capabilities() (*drivers.Capabilities, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.Capabilities()
}

func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.Fingerprint(ctx)
}

func (p *Plugin) RecoverTask(handle *drivers.TaskHandle) error {
	driver, err := p.up()
	if err != nil {
		return err
	}
	return driver.RecoverTask(handle)
}

func (p *Plugin) StartTask(task *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	driver, err := p.up()
	if err != nil {
		return nil, nil, err
	}
	return driver.StartTask(task)
}

func (p *Plugin) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.WaitTask(ctx, id)
}

func (p *Plugin) StopTask(id string, timeout time.Duration, signal string) error {
	driver, err := p.up()
	if err != nil {
		return err
	}
	return driver.StopTask(id, timeout, signal)
}

func (p *Plugin) DestroyTask(id string, force bool) error {
	driver, err := p.up()
	if err != nil {
		return err
	}
	return driver.DestroyTask(id, force)
}

func (p *Plugin) InspectTask(id string) (*drivers.TaskStatus, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	status, err := driver.InspectTask(id)
	// A driver in the tests' own process answers with the value itself.
	if err != nil && Plain(err).Error() == drivers.ErrTaskNotFound.Error() {
		return nil, drivers.ErrTaskNotFound
	}
	return status, err
}

func (p *Plugin) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.TaskStats(ctx, id, interval)
}

func (p *Plugin) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.TaskEvents(ctx)
}

func (p *Plugin) SignalTask(id string, signal string) error {
	driver, err := p.up()
	if err != nil {
		return err
	}
	return driver.SignalTask(id, signal)
}

func (p *Plugin) ExecTask(id string, command []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	driver, err := p.up()
	if err != nil {
		return nil, err
	}
	return driver.ExecTask(id, command, timeout)
}

func (p *Plugin) ExecTaskStreamingRaw(ctx context.Context, id string, command []string, tty bool, stream drivers.ExecTaskStream) error {
	driver, err := p.up()
	if err != nil {
		return err
	}
	return driver.(drivers.ExecTaskStreamingRawDriver).ExecTaskStreamingRaw(ctx, id, command, tty, stream)
}

// Tasks is what a test that makes the driver lose a task reaches for.
type Tasks struct{ Plugin *Plugin }

// Delete makes the driver forget the task, and every other, without ending it: its plugin is killed.
func (t *Tasks) Delete(string) { t.Plugin.Restart() }
