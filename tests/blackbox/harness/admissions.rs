//! The log of what was admitted, and the question that every strict limit has to stand: how much of it lies in the
//! fullest window.

/// Hits that were admitted, each at some time between two, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Admissions(Vec<(u64, u64)>);

impl Admissions {
    /// A hit that was asked for and answered at these times.
    pub fn push(&mut self, asked: u64, answered: u64) {
        assert!(asked <= answered, "{asked} to {answered}");
        self.0.push((asked, answered));
    }

    pub fn append(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }

    /// How many were asked for since this time.
    pub fn since(&self, micros: u64) -> usize {
        self.0.iter().filter(|(asked, _)| *asked >= micros).count()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The most hits that were certainly admitted within one window, wherever it begins: asked for after its beginning,
    /// answered before its end.
    pub fn most_in_a_window(&self, window_micros: u64) -> usize {
        // One that took a window or longer was in none for certain.
        let sure = self.0.iter().filter(|(asked, answered)| answered - asked < window_micros);
        let (mut asked, mut answered): (Vec<u64>, Vec<u64>) = sure.copied().unzip();
        asked.sort_unstable();
        answered.sort_unstable();
        let mut before_end = 0;
        // A window that is fullest begins where a hit was asked for. Whoever asked earlier was answered before its end.
        let inside = asked.iter().enumerate().map(|(at, began)| {
            while answered.get(before_end).is_some_and(|answered| *answered < began + window_micros) {
                before_end += 1;
            }
            before_end - asked.partition_point(|earlier| earlier < began).min(at)
        });
        inside.max().unwrap_or(0)
    }
}

#[test]
fn the_fullest_window_is_found_wherever_it_begins() {
    let mut log = Admissions::default();
    [(0, 0), (5, 5), (9, 9), (10, 10), (12, 13), (19, 20), (21, 90)]
        .iter()
        .for_each(|&(asked, answered)| log.push(asked, answered));
    let by_hand = [(1, 1), (2, 2), (10, 4), (11, 4), (15, 5), (100, 7)];
    for (window, most) in by_hand {
        assert_eq!(log.most_in_a_window(window), most, "{window}");
    }
}
