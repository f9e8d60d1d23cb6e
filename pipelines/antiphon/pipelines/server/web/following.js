// Keeps the end of the page visible while an answer grows, unless the user has scrolled up.

const NEAR_END = 160; // pixels
let isFollowing = true, lastY = 0, isPlanned = false;

const isAtEnd = () => innerHeight + scrollY > document.body.scrollHeight - NEAR_END;

addEventListener("scroll", () => {
  if (scrollY < lastY) isFollowing = isAtEnd();
  else isFollowing ||= isAtEnd();
  lastY = scrollY;
}, { passive: true });

// Scrolls to the end and stays there.
export function follow() {
  isFollowing = true;
  followIfAtEnd();
}

// Scrolls to the end if it was visible, at most once for each frame, because measuring the page takes time.
export function followIfAtEnd() {
  if (isPlanned) return;
  isPlanned = true;
  requestAnimationFrame(() => {
    isPlanned = false;
    if (isFollowing) scrollTo(0, document.body.scrollHeight);
  });
}
