// Copies the Markdown of an incident.
const text = document.getElementById("markdown");
const button = document.getElementById("copy");
const told = document.getElementById("copied");
button.hidden = false;
button.addEventListener("click", async () => {
  text.select();
  try {
    await navigator.clipboard.writeText(text.value);
    told.textContent = "copied";
  } catch {
    told.textContent = "select it and copy by keyboard: the browser allows no more on this address";
  }
});
