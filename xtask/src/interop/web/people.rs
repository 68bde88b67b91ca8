//! How people want to use it: by keys, with their colours and times.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{
    super::job::Job,
    kit::{end, running, sleeps, started},
    page::Page,
};
use crate::local::{BOUND, until};

/// Presses Tab until this is true of the page.
fn tab_to(page: &mut Page, what: &str, reached: &str) -> Result<()> {
    for _ in 0..60 {
        if page.eval(reached)? == true {
            return Ok(());
        }
        page.key("Tab")?;
    }
    page.until(what, reached)
}

/// Keys belong together when no more time lies between them.
const TOGETHER: Duration = Duration::from_secs(1);

/// Presses keys that mean something together until this is true of the page. On a machine that stands still more time
/// may lie between them, and then they mean nothing: they are pressed again, once the first ones are forgotten.
fn press_together(page: &mut Page, what: &str, press: impl Fn(&mut Page) -> Result<()>, reached: &str) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < BOUND {
        press(page)?;
        let pressed = Instant::now();
        while pressed.elapsed() <= TOGETHER {
            if page.eval(&format!("!!({reached})")).is_ok_and(|is| is == true) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    page.until(what, reached)
}

/// Presses keys of one letter after each other.
fn letters(keys: [&str; 2]) -> impl Fn(&mut Page) -> Result<()> {
    move |page| keys.into_iter().try_for_each(|key| page.key(key))
}

pub(super) fn keyboard(page: &mut Page) -> Result<()> {
    let agent = started("web-keyboard")?;
    agent.submit(&sleeps("one").count(0).body())?;
    let says = "echo something to read; exec sleep 71029";
    agent.submit(&Job::script("other", "service", "raw_exec", says).undeployed().body())?;
    running(&agent, "other")?;
    page.open(&format!("{}/ui/clients", agent.address()))?;
    page.shows("web-keyboard")?;
    press_together(page, "the page of jobs", letters(["g", "j"]), "location.pathname === '/ui/jobs'")?;
    page.shows("other")?;
    page.key("?")?;
    page.shows("On every page")?;
    page.key("Escape")?;
    page.until("no list of keys any more", "!document.querySelector('dialog')")?;
    let focus = |text: &str| format!("document.activeElement?.textContent === '{text}'");
    for (key, on) in [("j", "one"), ("j", "other"), ("k", "one")] {
        page.key(key)?;
        page.until(&format!("the row that {key} leads to"), &focus(on))?;
    }
    // Whoever holds Shift sees what leads where, and opens a row by its number.
    let shift =
        |kind: &str| format!("document.dispatchEvent(new KeyboardEvent('{kind}', {{key: 'Shift', bubbles: true}}))");
    page.eval(&shift("keydown"))?;
    let hinted = |hint: &str| {
        format!(
            "[...document.querySelectorAll(':root[data-hints] [data-hint]')].some((e) => e.dataset.hint === '{hint}')"
        )
    };
    page.until("the key of a page", &hinted("g c"))?;
    page.until("the number of a row", &hinted("02"))?;
    page.keep("keys-are-shown")?;
    page.eval(&shift("keyup"))?;
    page.until("no keys any more", "!('hints' in document.documentElement.dataset)")?;
    let digits = |page: &mut Page| ["0", "2"].into_iter().try_for_each(|key| page.key_with(key, 8));
    let second = "location.pathname === '/ui/jobs/other%40default'";
    press_together(page, "the page of the second job", digits, second)?;
    page.shows("other.g[0]")?;
    page.key("u")?;
    page.until("the jobs again", "location.pathname === '/ui/jobs'")?;
    page.shows("other")?;
    page.key("/")?;
    page.until("the field of the filter", "document.activeElement?.type === 'search'")?;
    page.types("oth")?;
    page.until("one row", "document.querySelectorAll('tbody tr').length === 1")?;
    page.until("the filter in the address", "location.search === '?q=oth'")?;
    tab_to(page, "the focus on the link of the row", &focus("other"))?;
    page.key("Enter")?;
    page.until("the page of the job", "location.pathname === '/ui/jobs/other%40default'")?;
    page.shows("other.g[0]")?;
    // Its tabs, to the last and back.
    page.key_with("ArrowRight", 8)?;
    page.until("the next tab", "location.pathname.endsWith('/allocations')")?;
    page.key("u")?;
    page.until("the job again", "location.pathname === '/ui/jobs/other%40default'")?;
    page.shows("other.g[0]")?;
    // Both before a page is drawn.
    page.eval(
        "for (const init of [{key: 'ArrowRight', shiftKey: true}, {key: 'u'}]) \
            document.dispatchEvent(new KeyboardEvent('keydown', {...init, bubbles: true, cancelable: true}))",
    )?;
    page.until("still the job", "location.pathname === '/ui/jobs/other%40default'")?;
    page.shows("other.g[0]")?;
    page.key("l")?;
    page.shows("something to read")?;
    page.until("its log", "location.pathname.endsWith('/t/logs')")?;
    press_together(page, "long lines", letters(["w", "w"]), "document.querySelector('pre.log.unwrapped')")?;
    page.key("u")?;
    page.until("the job again", "location.pathname === '/ui/jobs/other%40default'")?;
    page.shows("other.g[0]")?;
    tab_to(page, "the focus on its end", &focus("Stop"))?;
    page.key("Enter")?;
    page.shows("Its allocation ends.")?;
    tab_to(page, "the answer", &format!("document.activeElement?.closest('dialog') && {}", focus("Stop")))?;
    page.key("Enter")?;
    page.shows("The job is stopped.")?;
    until("the end of its task", BOUND, || Ok(agent.alloc("other", "running")?.is_none().then_some(())))
}

pub(super) fn settings(page: &mut Page) -> Result<()> {
    let agent = started("web-settings")?;
    agent.submit(&sleeps("aged").body())?;
    running(&agent, "aged")?;
    page.open(&format!("{}/ui/jobs/aged@default", agent.address()))?;
    let time = "document.querySelector('td time')";
    page.until("an age, and its moment", &format!("/^\\d+ (s|min)/.test({time}?.textContent) && {time}.title > '2'"))?;
    page.click("Settings")?;
    page.choose("Colours", "dark")?;
    page.until("dark colours", "document.documentElement.dataset.theme === 'dark'")?;
    let offers = "[...document.querySelectorAll('header button')].some((b) => b.textContent === 'Light')";
    page.until("a button that leads back", offers)?;
    page.choose("Rows", "compact")?;
    page.choose("Times", "clock")?;
    page.choose("Time zone", "UTC")?;
    // Another letter for a key, and what stands in its way.
    page.fill("Key of Clients", "j")?;
    page.key("Tab")?;
    page.shows("j means \"Jobs\": give that another letter first.")?;
    page.fill("Key of Clients", "z")?;
    page.key("Tab")?;
    page.shows("g z")?;
    page.eval("document.activeElement.blur()")?;
    press_together(page, "the page of clients", letters(["g", "z"]), "location.pathname === '/ui/clients'")?;
    page.click("Settings")?;
    page.choose("Keys of one letter", "off")?;
    page.shows(" UTC.")?;
    // They are kept, and meant for this browser only.
    page.open(&format!("{}/ui/jobs/aged@default", agent.address()))?;
    page.until("a moment, and its age", &format!("/^20\\d\\d-.* UTC$/.test({time}?.textContent) && {time}.title"))?;
    let look = page.eval("document.documentElement.dataset.theme + document.documentElement.dataset.density")?;
    ensure!(look == "darkcompact", "{look}");
    until("two keys within a second", BOUND, || {
        let begun = Instant::now();
        letters(["g", "z"])(page)?;
        Ok((begun.elapsed() < TOGETHER).then_some(()))
    })?;
    // It has had its turn when another one has been answered.
    page.key_with("k", 2)?;
    page.until("the field", "document.querySelector('dialog')")?;
    ensure!(page.eval("location.pathname")? == "/ui/jobs/aged@default", "keys of one letter are off");
    end(&agent, "aged")
}
