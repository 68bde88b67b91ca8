// A driver of local processes as people write them with the stock packages: an executor of Nomad's own holds each workload, and is found again by its
// reattach configuration. The workload is told nothing of its task: neither environment nor directory. A target of `cargo xtask interop`.
package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/drivers/shared/executor"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
)

// What a job says.
type options struct {
	Script string `codec:"script"`
}

// What is found again.
type state struct {
	Reattach *pstructs.ReattachConfig
	Task     *drivers.TaskConfig
	Started  time.Time
}

// A task that this process has in hand.
type task struct {
	executor executor.Executor
	client   *plugin.Client
	config   *drivers.TaskConfig
	started  time.Time
	over     chan struct{}

	// Written before over is closed.
	ended  time.Time
	result drivers.ExitResult
}

func (t *task) follow() {
	defer close(t.over)
	end, err := t.executor.Wait(context.Background())
	t.ended = time.Now()
	if err != nil {
		t.result.Err = fmt.Errorf("the executor: %w", err)
		return
	}
	t.result = drivers.ExitResult{ExitCode: end.ExitCode, Signal: end.Signal, OOMKilled: end.OOMKilled}
}

func (t *task) runs() bool {
	select {
	case <-t.over:
		return false
	default:
		return true
	}
}

type driver struct {
	*eventer.Eventer
	log   hclog.Logger
	agent *base.AgentConfig

	lock  sync.Mutex
	tasks map[string]*task
}

func (d *driver) get(id string) (*task, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if found, ok := d.tasks[id]; ok {
		return found, nil
	}
	return nil, drivers.ErrTaskNotFound
}

func (d *driver) add(t *task) {
	t.over = make(chan struct{})
	d.lock.Lock()
	defer d.lock.Unlock()
	d.tasks[t.config.ID] = t
	go t.follow()
}

func (d *driver) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDriver, Name: "go_exec", PluginVersion: "0.1.0", PluginApiVersions: []string{drivers.ApiVersion010},
	}, nil
}

func (d *driver) ConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{}), nil
}

func (d *driver) SetConfig(config *base.Config) error {
	if config.AgentConfig == nil || config.AgentConfig.Driver == nil {
		return errors.New("the agent says nothing of itself")
	}
	d.agent = config.AgentConfig
	return nil
}

func (d *driver) TaskConfigSchema() (*hclspec.Spec, error) {
	return hclspec.NewObject(map[string]*hclspec.Spec{"script": hclspec.NewAttr("script", "string", true)}), nil
}

func (d *driver) Capabilities() (*drivers.Capabilities, error) {
	return &drivers.Capabilities{SendSignals: true, FSIsolation: fsisolation.None}, nil
}

func (d *driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	told := make(chan *drivers.Fingerprint, 1)
	told <- &drivers.Fingerprint{Health: drivers.HealthStateHealthy, HealthDescription: drivers.DriverHealthy}
	go func() {
		<-ctx.Done()
		close(told)
	}()
	return told, nil
}

func (d *driver) StartTask(config *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if _, err := d.get(config.ID); err == nil {
		return nil, nil, fmt.Errorf("task %q has been started", config.ID)
	}
	var wanted options
	if err := config.DecodeDriverConfig(&wanted); err != nil {
		return nil, nil, err
	}
	how := &executor.ExecutorConfig{
		LogFile: filepath.Join(config.TaskDir().Dir, "executor.out"), LogLevel: "debug", Compute: d.agent.Compute(),
	}
	launched, client, err := executor.CreateExecutor(d.log, d.agent.Driver, how)
	if err != nil {
		return nil, nil, fmt.Errorf("start the executor: %w", err)
	}
	command := &executor.ExecCommand{
		Cmd: "/bin/sh", Args: []string{"-c", wanted.Script}, StdoutPath: config.StdoutPath, StderrPath: config.StderrPath,
	}
	if _, err := launched.Launch(command); err != nil {
		client.Kill()
		return nil, nil, fmt.Errorf("start the command: %w", err)
	}
	started := &task{executor: launched, client: client, config: config, started: time.Now()}
	handle := drivers.NewTaskHandle(1)
	handle.Config = config
	kept := state{Reattach: pstructs.ReattachConfigFromGoPlugin(client.ReattachConfig()), Task: config, Started: started.started}
	if err := handle.SetDriverState(&kept); err != nil {
		_ = launched.Shutdown("", 0)
		client.Kill()
		return nil, nil, err
	}
	d.add(started)
	return handle, nil, nil
}

func (d *driver) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return errors.New("an empty handle")
	}
	if _, err := d.get(handle.Config.ID); err == nil {
		return nil
	}
	var kept state
	if err := handle.GetDriverState(&kept); err != nil {
		return err
	}
	where, err := pstructs.ReattachConfigToGoPlugin(kept.Reattach)
	if err != nil {
		return err
	}
	found, client, err := executor.ReattachToExecutor(where, d.log, d.agent.Compute())
	if err != nil {
		return fmt.Errorf("find the executor: %w", err)
	}
	d.add(&task{executor: found, client: client, config: kept.Task, started: kept.Started})
	return nil
}

func (d *driver) WaitTask(ctx context.Context, id string) (<-chan *drivers.ExitResult, error) {
	t, err := d.get(id)
	if err != nil {
		return nil, err
	}
	told := make(chan *drivers.ExitResult, 1)
	go func() {
		defer close(told)
		select {
		case <-t.over:
			told <- t.result.Copy()
		case <-ctx.Done():
			told <- &drivers.ExitResult{Err: ctx.Err()}
		}
	}()
	return told, nil
}

func (d *driver) StopTask(id string, timeout time.Duration, signal string) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	if err := t.executor.Shutdown(signal, timeout); err != nil && !t.client.Exited() {
		return fmt.Errorf("stop the command: %w", err)
	}
	return nil
}

func (d *driver) DestroyTask(id string, force bool) error {
	t, err := d.get(id)
	if err != nil {
		return err
	}
	if t.runs() && !force {
		return errors.New("the task runs")
	}
	if !t.client.Exited() {
		if err := t.executor.Shutdown("", 0); err != nil {
			d.log.Error("the executor does not end its command", "error", err)
		}
		t.client.Kill()
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	delete(d.tasks, id)
	return nil
}

func (d *driver) InspectTask(id string) (*drivers.TaskStatus, error) {
	t, err := d.get(id)
	if err != nil {
		return nil, err
	}
	status := &drivers.TaskStatus{ID: id, Name: t.config.Name, State: drivers.TaskStateRunning, StartedAt: t.started}
	if !t.runs() {
		status.State, status.CompletedAt, status.ExitResult = drivers.TaskStateExited, t.ended, t.result.Copy()
	}
	return status, nil
}

func (d *driver) TaskStats(ctx context.Context, id string, interval time.Duration) (<-chan *drivers.TaskResourceUsage, error) {
	t, err := d.get(id)
	if err != nil {
		return nil, err
	}
	return t.executor.Stats(ctx, interval)
}

func (d *driver) SignalTask(string, string) error { return errors.New("no signals") }

func (d *driver) ExecTask(string, []string, time.Duration) (*drivers.ExecTaskResult, error) {
	return nil, errors.New("no commands beside the task")
}

func main() {
	plugins.Serve(func(log hclog.Logger) any {
		return &driver{Eventer: eventer.NewEventer(context.Background(), log), log: log.Named("go_exec"), tasks: map[string]*task{}}
	})
}
