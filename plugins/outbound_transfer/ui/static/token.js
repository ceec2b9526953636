// Loads this address again with the token that Airflow's UI keeps in the local storage, as its own pages do.
(async () => {
  "use strict";
  const token = localStorage.getItem("token");
  if (!token) return;
  const response = await fetch(location.href, { headers: { Authorization: `Bearer ${token}` }, cache: "no-store" });
  if (response.status === 401) return; // an expired token: the page says what to do
  const page = await response.text();
  document.open();
  document.write(page);
  document.close();
})();
