//! A connection between two agents that a test can cut.

use std::{
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// A line that can be cut while both ends live on.
#[derive(Debug)]
pub struct Wire {
    at: SocketAddr,
    far: Arc<Mutex<String>>,
    cut: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    /// Lays one to that address; its near end is [`Wire::at`].
    ///
    /// # Panics
    /// No port is free.
    pub fn to(address: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("bound");
        let wire = Self { at, far: Arc::new(Mutex::new(address)), cut: Arc::default(), open: Arc::default() };
        let (far, cut, open) = (wire.far.clone(), wire.cut.clone(), wire.open.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let far = locked(&far).clone();
                let Some(far) = TcpStream::connect(far).ok().filter(|_| !cut.load(Ordering::SeqCst)) else { continue };
                let both = [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())];
                for (from, to) in both {
                    let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                locked(&open).extend([near, far]);
            }
        });
        wire
    }

    /// Its near end.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// The far end is somewhere else from now on.
    pub fn leads_to(&self, address: String) {
        *locked(&self.far) = address;
    }

    /// Cuts all connections and refuses new ones.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        for stream in locked(&self.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
    }
}
