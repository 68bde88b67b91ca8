//! The remote-task functions run against a fake provider: exhaustively on small configurations, from seeds on larger ones, and through the
//! acceptance scenarios that make sense without real processes.

mod model_check;
mod scenarios;
mod simulate;
mod world;
