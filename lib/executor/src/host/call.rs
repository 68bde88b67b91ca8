//! A request under way, and the output that all of them share.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use executor_proto::encode_frame;
use executor_proto::host::{HOST_WINDOW, HostCredit, HostInput, HostReply, host_reply::Body};

use crate::sys;

/// Where all answers go.
pub(super) struct Output(Mutex<File>);

impl Output {
    pub(super) fn new(file: File) -> Self {
        Self(Mutex::new(file))
    }

    pub(super) fn send(&self, id: u64, body: Body) {
        let mut frame = Vec::new();
        encode_frame(&HostReply { id, body: Some(body) }, &mut frame);
        if lock(&self.0).write_all(&frame).is_err() {
            // Nobody is there any more.
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
    /// Bytes that may still be sent.
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

    /// Nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        lock(&self.state).cancelled
    }

    /// A part of the answer that is small.
    pub(super) fn send(&self, body: Body) {
        self.output.send(self.id, body);
    }

    /// A part of the answer with `length` bytes of data; waits while the manager does not read. Does nothing once cancelled.
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

    /// The next data from the manager, waiting for it; `None` once cancelled.
    pub(super) fn input(&self) -> Option<HostInput> {
        self.input_until(&AtomicBool::new(false))
    }

    /// As [`Call::input`]; also `None` once it is `over`, of which [`Call::wake`] tells.
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

    /// Has everybody who waits here look again.
    pub(super) fn wake(&self) {
        self.change(|_| ());
    }
}
