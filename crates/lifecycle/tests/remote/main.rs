//! The remote-task functions run against a fake provider: exhaustively on small configurations, and from seeds on
//! larger ones. They also run through the acceptance scenarios that make sense without real processes.

mod charges;
mod deadlines;
mod explore;
mod faults;
mod intents;
mod kinds;
mod levels;
mod model_check;
mod mutations;
mod promises;
mod restored;
mod scenarios;
mod simulate;
mod timed;
mod world;
