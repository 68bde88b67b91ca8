//! A request under way, and the output that all requests share.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use executor_proto::encode_frame;
use executor_proto::host::{HOST_WINDOW, HostCredit, HostInput, HostReply, host_reply::Body};

use crate::sys;

/// The stream of all answers.
pub(super) struct Output(Mutex<File>);

impl Output {
    pub(super) fn new(file: File) -> Self {
        Self(Mutex::new(file))
    }

    pub(super) fn send(&self, id: u64, body: Body) {
        let mut frame = Vec::new();
        encode_frame(&HostReply { id, body: Some(body) }, &mut frame);
        if lock(&self.0).write_all(&frame).is_err() {
            // The manager has gone.
            sys::exit_now(0);
        }
    }
}

/// One request under way.
pub(super) struct Call {
    id: u64,
    output: Arc<Output>,
    state: Mutex<State>,
    changed: Condvar,
}

pub(super) struct State {
    pub(super) cancelled: bool,
    /// Bytes that the manager still accepts.
    pub(super) credit: u64,
    pub(super) input: VecDeque<HostInput>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Call {
    pub(super) fn new(id: u64, output: Arc<Output>) -> Self {
        let state = State { cancelled: false, credit: HOST_WINDOW, input: VecDeque::new() };
        Self { id, output, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    /// Whether the manager has cancelled it.
    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    /// Sends a small part of the answer.
    pub(super) fn send(&self, body: Body) {
        self.output.send(self.id, body);
    }

    /// Sends a part of the answer with `length` bytes of data; waits while the manager does not read. Does nothing
    /// after a cancellation.
    pub(super) fn send_data(&self, length: u64, body: Body) {
        let mut state = lock(&self.state);
        while state.credit < length && !state.cancelled {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.cancelled {
            return;
        }
        state.credit -= length;
        drop(state);
        self.send(body);
    }

    /// Waits for the next data from the manager; `None` after a cancellation.
    pub(super) fn input(&self) -> Option<HostInput> {
        self.input_until(&AtomicBool::new(false))
    }

    /// As [`Call::input`]; also `None` once `over` is set; [`Call::wake`] announces that.
    pub(super) fn input_until(&self, over: &AtomicBool) -> Option<HostInput> {
        let mut state = lock(&self.state);
        loop {
            if state.cancelled || over.load(Ordering::Acquire) {
                return None;
            }
            if let Some(input) = state.input.pop_front() {
                drop(state);
                if !input.data.is_empty() {
                    self.send(Body::Credit(HostCredit { bytes: input.data.len() as u64 }));
                }
                return Some(input);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes all waiters for another look.
    pub(super) fn wake(&self) {
        self.change(|_| ());
    }
}
