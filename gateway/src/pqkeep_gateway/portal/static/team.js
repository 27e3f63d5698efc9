// Shows the invitation's link to the inviter, for a service that sends no mail.
document.addEventListener("responded", ({ detail }) => {
  const place = document.querySelector("[data-invitation-link]");
  if (place && detail.invitation_token) {
    place.textContent = `${location.origin}${document.body.dataset.root}/invitation#${detail.invitation_token}`;
  }
});
