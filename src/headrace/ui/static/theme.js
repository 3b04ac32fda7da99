// Before anything is drawn, so that a page does not flash in the other colours.
try {
  const theme = localStorage.getItem("headrace-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* no storage: as the system says */ }
