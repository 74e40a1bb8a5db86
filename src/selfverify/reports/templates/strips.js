document.querySelectorAll(".strip").forEach(function (strip) {
  var steps = Array.from(strip.children), at = -1;
  strip.addEventListener("keydown", function (event) {
    var to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: steps.length - 1 }[event.key];
    if (to === undefined) { return; }
    event.preventDefault();
    if (at >= 0) { steps[at].classList.remove("at"); }
    at = Math.min(Math.max(to, 0), steps.length - 1);
    steps[at].classList.add("at");
    strip.scrollTo({ left: steps[at].offsetLeft - steps[0].offsetLeft, behavior: "instant" });
  });
});
